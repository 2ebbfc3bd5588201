! Strong-stability-preserving Runge-Kutta steps of Shu and Osher, orders two and three, and the stable step.
module stepper
  use kinds, only: dp
  use deck, only: deck_t
  use grid, only: grid_t
  implicit none

  abstract interface
    ! Fills the ghosts of q and returns dq/dt of the interior.
    subroutine tendency_of(q, tendency)
      import :: dp
      real(dp), intent(inout) :: q(:, :, :)
      real(dp), intent(out) :: tendency(:, :, :)
    end subroutine tendency_of
  end interface

contains

  ! interior(q) is q without its ghosts: q(first:last_x, first:last_y, :).
  subroutine advance(name, rhs, dt, first, q, work, tendency)
    character(len=*), intent(in) :: name
    procedure(tendency_of) :: rhs
    real(dp), intent(in) :: dt
    integer, intent(in) :: first
    real(dp), intent(inout) :: q(:, :, :), work(:, :, :), tendency(:, :, :)
    integer :: last_x, last_y
    last_x = first + size(tendency, 1) - 1
    last_y = first + size(tendency, 2) - 1
    work = q
    call euler_stage()
    select case (name)
    case ('ssprk2')
      call euler_stage()
      work = 0.5_dp * q + 0.5_dp * work
    case ('ssprk3')
      call euler_stage()
      work = 0.75_dp * q + 0.25_dp * work
      call euler_stage()
      work = q / 3.0_dp + 2.0_dp * work / 3.0_dp
    case default
      error stop 'stepper: stepper must be ssprk2 or ssprk3'
    end select
    q = work

  contains

    subroutine euler_stage()
      call rhs(work, tendency)
      work(first:last_x, first:last_y, :) = work(first:last_x, first:last_y, :) + dt * tendency
    end subroutine euler_stage

  end subroutine advance

  ! The largest step that both the Courant and the diffusion limit allow.
  pure real(dp) function stable_step(d, g, speed, kappa)
    type(deck_t), intent(in) :: d
    type(grid_t), intent(in) :: g
    real(dp), intent(in) :: speed, kappa   ! maxima over the grid and over the species
    real(dp) :: h
    h = min(g%dx, g%dy)
    stable_step = d%courant / (speed / h + 4.0_dp * kappa / h**2 + tiny(h))
  end function stable_step

end module stepper
