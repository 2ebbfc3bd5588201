! Local kinetics: first-order decay, Fisher-KPP growth and the Gray-Scott system.
module reaction
  use kinds, only: dp, ghosts
  use deck, only: deck_t
  use grid, only: grid_t
  implicit none

  enum, bind(c)
    enumerator :: none, first_order_decay, fisher_growth, gray_scott
  end enum

  type :: kinetics_t
    integer :: kind = none
    real(dp) :: decay = 0.0_dp           ! 1/time
    real(dp) :: feed = 0.0_dp, kill = 0.0_dp
    real(dp) :: diffusivity(2) = 0.0_dp
  end type kinetics_t

contains

  ! A name that is no kind of its own is a row of the pattern table: name, feed, kill, two diffusivities.
  function make_kinetics(d) result(k)
    type(deck_t), intent(in) :: d
    type(kinetics_t) :: k
    k%diffusivity = d%diffusivity
    k%decay = d%decay
    select case (d%kinetics)
    case ('none')
      k%kind = none
    case ('decay')
      k%kind = first_order_decay
    case ('fisher')
      k%kind = fisher_growth
    case default
      k%kind = gray_scott
      call read_pattern('data/patterns.dat', d%kinetics, k)
    end select
  end function make_kinetics

  subroutine read_pattern(path, name, k)
    character(len=*), intent(in) :: path, name
    type(kinetics_t), intent(inout) :: k
    character(len=200) :: line
    character(len=24) :: row
    integer :: unit, status
    open(newunit=unit, file=path, status='old', action='read')
    do
      read(unit, '(a)', iostat=status) line
      if (status /= 0) error stop 'reaction: kinetics is neither none, decay, fisher nor a row of data/patterns.dat'
      if (line(1:1) == '#') cycle
      read(line, *) row, k%feed, k%kill, k%diffusivity
      if (row == name) exit
    end do
    close(unit)
  end subroutine read_pattern

  subroutine add_reaction(k, g, q, tendency)
    type(kinetics_t), intent(in) :: k
    type(grid_t), intent(in) :: g
    real(dp), intent(in) :: q(1-ghosts:, 1-ghosts:, :)
    real(dp), intent(inout) :: tendency(:, :, :)
    integer :: i, j
    do j = 1, g%ny
      do i = 1, g%nx
        tendency(i, j, :) = tendency(i, j, :) + rate(k, q(i, j, :))
      end do
    end do
  end subroutine add_reaction

  pure function rate(k, c) result(r)
    type(kinetics_t), intent(in) :: k
    real(dp), intent(in) :: c(:)
    real(dp) :: r(size(c)), conversion
    r = 0.0_dp
    select case (k%kind)
    case (first_order_decay)
      r = -k%decay * c
    case (fisher_growth)   ! logistic growth
      r = c * (1.0_dp - c)
    case (gray_scott)   ! U + 2V -> 3V, U is fed, V is removed
      conversion = c(1) * c(2)**2
      r(1) = k%feed * (1.0_dp - c(1)) - conversion
      r(2) = conversion - (k%feed + k%kill) * c(2)
    end select
  end function rate

end module reaction
