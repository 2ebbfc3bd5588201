! Advective fluxes q u through the faces, from cell averages.
module advection
  use kinds, only: dp, ghosts
  use deck, only: deck_t
  use grid, only: grid_t
  use velocity, only: flow_t
  implicit none

contains

  ! Adds -div(u q) to the tendency.
  subroutine add_advection(d, g, f, q, tendency)
    type(deck_t), intent(in) :: d
    type(grid_t), intent(in) :: g
    type(flow_t), intent(in) :: f
    real(dp), intent(in) :: q(1-ghosts:, 1-ghosts:)
    real(dp), intent(inout) :: tendency(:, :)
    real(dp) :: flux_x(0:g%nx, g%ny), flux_y(g%nx, 0:g%ny)
    logical :: third_order
    integer :: i, j
    third_order = d%flux == 'upwind3'
    do j = 1, g%ny
      do i = 0, g%nx
        flux_x(i, j) = face_flux(third_order, f%u(i, j), q(i-1, j), q(i, j), q(i+1, j), q(i+2, j))
      end do
    end do
    do j = 0, g%ny
      do i = 1, g%nx
        flux_y(i, j) = face_flux(third_order, f%v(i, j), q(i, j-1), q(i, j), q(i, j+1), q(i, j+2))
      end do
    end do
    do j = 1, g%ny
      do i = 1, g%nx
        tendency(i, j) = tendency(i, j) - (flux_x(i, j) - flux_x(i-1, j)) / g%dx &
          - (flux_y(i, j) - flux_y(i, j-1)) / g%dy
      end do
    end do
  end subroutine add_advection

  ! The face lies between q0 and q1; qm and q2 are their outer neighbours. Second order is the plain mean.
  pure real(dp) function face_flux(third_order, speed, qm, q0, q1, q2)
    logical, intent(in) :: third_order
    real(dp), intent(in) :: speed, qm, q0, q1, q2
    if (.not. third_order) then
      face_flux = 0.5_dp * speed * (q0 + q1)
    else if (speed >= 0.0_dp) then
      face_flux = speed * upwind3(qm, q0, q1)
    else
      face_flux = speed * upwind3(q2, q1, q0)
    end if
  end function face_flux

  ! The parabola through three cell averages, two of them upstream, evaluated at the face: third order.
  pure real(dp) function upwind3(far, near, downstream)
    real(dp), intent(in) :: far, near, downstream
    upwind3 = (2.0_dp * downstream + 5.0_dp * near - far) / 6.0_dp
  end function upwind3

end module advection
